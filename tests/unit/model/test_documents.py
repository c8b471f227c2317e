"""Documents are checked as a whole, and an error names the place."""

from __future__ import annotations

import json

import pytest
import yaml

from scheduler_service import errors
from scheduler_service.model import documents
from scheduler_service.model.inventory import Host
from scheduler_service.rpc.endpoints import credentials


def test_document_is_refused_when_nested_too_deeply():
    nested: object = 1
    for _ in range(40):
        nested = [nested]
    with pytest.raises(errors.PayloadTooLarge, match='32 levels'):
        documents.check_depth(nested)
    documents.check_depth([[[1]]])


@pytest.mark.parametrize('bad', ['a\0b', 'a\ud800b'])
def test_text_is_refused_with_its_place_when_no_database_holds_it(bad):
    hosts = {'hosts': [{'host': 'a'}, {'host': bad}]}
    with pytest.raises(errors.InvalidInventory, match=r'^hosts\[1\]\.host: '):
        documents.inventory(hosts)
    with pytest.raises(errors.InvalidInventory, match=r'^host: '):
        documents.parse({'host': bad}, Host, errors.InvalidInventory)
    with pytest.raises(errors.InvalidRequest, match=r'^project_id: '):
        documents.request({'project_id': bad})
    with pytest.raises(errors.InvalidRequest, match=r'^scheduler_hints: '):
        documents.request({'scheduler_hints': {bad: 'x'}})
    with pytest.raises(errors.InvalidRequest, match=r'^name: '):
        documents.zone({'name': bad})
    with pytest.raises(errors.InvalidRequest, match=r'^context\.user_id: '):
        credentials({'user_id': bad})
    documents.request({'scheduler_hints': {'a': '\\u0000 \U0001f600'}})


def test_integers_of_many_digits_are_accepted_where_any_are():
    stats = {'x': 10**4000}
    (host,) = documents.inventory(
        {'hosts': [{'host': 'a', 'stats': stats}]}
    ).hosts
    assert host.stats == stats


@pytest.mark.parametrize('form', ['json', 'yaml'])
def test_document_is_the_same_when_written_and_read_again(form):
    inventory = documents.inventory({'hosts': [{'host': 'a', 'vcpus': 1}]})
    text = documents.dump(inventory, form)
    assert documents.inventory(documents.read(text)) == inventory


@pytest.mark.parametrize('form', ['json', 'yaml'])
@pytest.mark.parametrize(
    'odd',
    ['\x7f', '\x80', '\x9b2J', '\u200b', '\u202e', '\u2066', '\u2028',
     '\ufeff', '\U000e0001', '\\\u202e', '\n\u202e\n', '\x1b[2J'],
)  # fmt: skip
def test_what_a_terminal_obeys_is_escaped_in_documents(form, odd):
    document = {f'k{odd}': [odd, f'é {odd} x' * 30, 'é\uff1d', 'a\nb\n', '']}
    text = documents.dump(document, form).decode()
    assert text.replace('\n', '').isprintable()
    read = json.loads if form == 'json' else yaml.safe_load
    assert read(text) == document


def test_other_characters_stay_as_they_are():
    for form in ('json', 'yaml'):
        assert 'é\uff1d' in documents.dump({'a': 'é\uff1d'}, form).decode()
