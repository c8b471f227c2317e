"""The page that tries a request: what would be decided now, and why.

It shows what ``/v1/explain`` returns; nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler_service import errors
from scheduler_service.http.message import HttpRequest, Reply
from scheduler_service.http.v1 import parameters
from scheduler_service.model import client_documents, documents
from scheduler_service.pages import decisions
from scheduler_service.pages.frame import Frame, without_empty

_FIELDS = (
    'flavor', 'zone', 'num_instances', 'project_id', 'traits', 'extra_specs',
    'hints',
)  # fmt: skip
_ALL = ('request', *_FIELDS, 'host')


def page(frame: Frame, request: HttpRequest) -> Reply:
    """Show the form, and the answer where a question was sent."""
    if len(request.query) > decisions.MOST_BYTES:
        raise errors.PayloadTooLarge(
            f'The question has {len(request.query)} bytes, and may have '
            f'{decisions.MOST_BYTES}: it is a link, which browsers and '
            'proxies cut. Use scheduler-manage select --dry-run'
        )
    sent = parameters(without_empty(request, _ALL), *_ALL)
    result, fault, status = None, None, 200
    try:
        if sent.keys() - {'host'}:
            document = _document(sent)
            result = decisions.explained(
                frame, request, document, sent.get('host')
            )
    except (errors.InvalidRequest, errors.NotFound) as error:
        status, fault = error.code, error
    return frame.page(
        'try.html', status, sent=sent, result=result, fault=fault,
        stacks=decisions.stacks,
    )  # fmt: skip


def _document(sent: Mapping[str, str]) -> Any:
    """Return the request that a form says, as YAML or by its fields.

    :raises InvalidRequest: a field cannot be read, or both were sent
    """
    if 'request' not in sent:
        return _of_fields(sent)
    for name in _FIELDS:
        if name in sent:
            raise errors.InvalidRequest.at(name, 'request has it')
    return documents.read(
        sent['request'].encode('utf-8', 'replace'),
        'request',
        errors.InvalidRequest,
    )


def _of_fields(sent: Mapping[str, str]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    flavor: dict[str, Any] = {}
    if 'flavor' in sent:
        flavor = client_documents.flavor_of_text(sent['flavor'])
    specs = flavor.get('extra_specs', {}) | _pairs(sent, 'extra_specs')
    for trait in sent.get('traits', '').replace(',', ' ').split():
        verdict = 'forbidden' if trait.startswith('!') else 'required'
        specs[f'trait:{trait.removeprefix("!")}'] = verdict
    document['flavor'] = {**flavor, 'extra_specs': specs}
    document['scheduler_hints'] = _pairs(sent, 'hints')
    if 'num_instances' in sent:
        number = sent['num_instances']
        if not (number.isascii() and number.isdecimal() and len(number) < 7):
            raise errors.InvalidRequest.at(
                'num_instances', 'expected a number'
            )
        document['num_instances'] = int(number)
    document['availability_zone'] = sent.get('zone')
    document['project_id'] = sent.get('project_id')
    return {name: value for name, value in document.items() if value}


def _pairs(sent: Mapping[str, str], field: str) -> dict[str, str]:
    """Return what a field has as lines of KEY=VALUE."""
    pairs = {}
    for line in sent.get(field, '').splitlines():
        key, equals, value = line.partition('=')
        if line.strip() and not equals:
            text = 'expected KEY=VALUE in each line'
            raise errors.InvalidRequest.at(field, text)
        if line.strip():
            pairs[key.strip()] = value.strip()
    return pairs
