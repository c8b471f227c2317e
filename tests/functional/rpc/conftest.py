"""A daemon on each kind of bus."""

import pytest

from tests.support.services import BUSES


@pytest.fixture(params=BUSES)
def service(request, make_service):
    return make_service(request.param)
