"""The reference pages name every method, error, field and metric."""

import re

import pytest

from scheduler_service import errors
from scheduler_service.model import (
    inventory,
    request,
)
from scheduler_service.rpc.endpoints import (
    HostStateEndpoint,
    SchedulerEndpoint,
)
from scheduler_service.rpc.server import methods
from tests.support.pages import literals
from tests.support.paths import ROOT

REFERENCE = ROOT / 'doc/source/reference'
RPC = (REFERENCE / 'rpc.rst').read_text()
FORMATS = (REFERENCE / 'formats.rst').read_text()
DOCUMENTS = (
    inventory.Pool,
    inventory.Host,
    inventory.Resource,
    inventory.Aggregate,
    inventory.Instance,
    inventory.ServerGroup,
    inventory.Inventory,
    request.Request,
    request.Flavor,
    request.Image,
    request.Retry,
    request.Destination,
    request.ZoneRequest,
)
# Commands and the start raise these; or a base class alone is raised.
NOT_SENT = (errors.ConfigurationError, errors.InvalidInventory)


def sent_errors():
    """Return the names and codes of the errors that a caller may get."""
    bases = (errors.SchedulerError, errors.NotFound)
    return {
        (one.__name__, one.code)
        for one in vars(errors).values()
        if isinstance(one, type)
        and issubclass(one, errors.SchedulerError)
        and not (one in bases or issubclass(one, NOT_SENT))
    }


def test_every_error_is_listed_with_its_code():
    rows = re.findall(r'(?m)^([A-Z]\w+) +(\d{3}) ', RPC)
    listed = {(name, int(code)) for name, code in rows}
    assert listed == sent_errors()


def test_every_method_is_described():
    described = set(re.findall(r'(?m)^``(\w+)\(', RPC))
    assert described == methods(SchedulerEndpoint) | methods(HostStateEndpoint)


@pytest.mark.parametrize('document', DOCUMENTS, ids=lambda kind: kind.__name__)
def test_every_field_is_named(document):
    named = set(literals(FORMATS))
    assert sorted(set(document.__struct_fields__) - named) == []
