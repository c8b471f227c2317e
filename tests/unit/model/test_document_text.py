"""Keys that a document has twice."""

from __future__ import annotations

import pytest

from scheduler_service import errors
from scheduler_service.extenders import policy_file
from scheduler_service.model import document_text, documents


def test_a_key_that_is_there_twice_is_found_in_yaml():
    text = b'hosts:\n- host: a\n  vcpus: 1\n  vcpus: 2\nhosts: []\n'
    assert document_text.parse(text)[1] == [
        'line 5: hosts is there twice',
        'line 4: vcpus is there twice',
    ]


def test_a_key_that_is_there_twice_is_found_in_json():
    text = b'{"hosts": [{"host": "a", "stats": {"x": 1, "x": 2, "x": 3}}]}'
    assert document_text.parse(text)[1] == [
        'hosts[0].stats.x: is there twice',
        'hosts[0].stats.x: is there twice',
    ]


@pytest.mark.parametrize(
    'text', [b'{"a": {"x": 1}, "b": {"x": 1}}', b'a: {x: 1}\nb: {x: 1}', b'']
)
def test_keys_of_different_objects_are_no_duplicates(text):
    assert document_text.parse(text)[1] == []


def test_merged_keys_of_yaml_may_be_set_again():
    text = b'a: &a {x: 1}\nb:\n  <<: *a\n  x: 2\n'
    assert document_text.parse(text) == ({'a': {'x': 1}, 'b': {'x': 2}}, [])


def test_a_document_with_a_key_twice_is_refused():
    with pytest.raises(errors.InvalidInventory) as caught:
        documents.read(b'a: 1\na: 2\nb: 1\nb: 2\n', 'file.yaml')
    assert caught.value.args[0] == '2 errors in the document'
    assert caught.value.facts['problems'] == [
        'file.yaml: line 2: a is there twice',
        'file.yaml: line 4: b is there twice',
    ]


@pytest.mark.parametrize('text', [b'{a: 1, b: [x]}', b'{"a": 1, b: [x]}'])
def test_a_mapping_of_yaml_in_braces_is_read(text):
    assert document_text.parse(text) == ({'a': 1, 'b': ['x']}, [])


def test_a_key_in_braces_that_is_no_text_is_named_with_its_line():
    with pytest.raises(ValueError, match='line 2: the key 1 is not a text'):
        document_text.parse(b'\n{1: 2, flavor: {vcpus: 2}}')


@pytest.mark.parametrize(
    'text', [b'a: [', b'a: \t b: c', b'? [a]\n: 1', b'[1, 2', b'{', b'\x80abc']
)
def test_text_that_is_not_yaml_is_refused_in_one_line(text):
    with pytest.raises(errors.InvalidInventory) as caught:
        documents.read(text)
    assert '\n' not in caught.value.args[0]


@pytest.mark.parametrize('start', ['', 'a: '])
def test_text_that_is_nested_too_deeply_is_refused(start):
    text = start + '[' * 20_000 + ']' * 20_000
    with pytest.raises(errors.InvalidInventory, match=r'recursion|nesting'):
        documents.read(text.encode())


@pytest.mark.parametrize(
    'value', [b'!!bool abc', b':'.join([b'59'] * 200) + b'.5', b'!!int x']
)
def test_a_value_that_its_tag_or_form_does_not_go_with_is_refused(value):
    with pytest.raises(errors.InvalidInventory, match='cannot be read'):
        documents.read(b'hosts: [{host: a, vcpus: ' + value + b'}]', 'a.yaml')


@pytest.mark.parametrize('number', ['.nan', '.inf', '-.Inf'])
def test_numbers_that_are_not_finite_are_named_with_their_line(number):
    text = f'hosts:\n- host: a\n  stats: {{x: {number}}}\n'.encode()
    with pytest.raises(errors.InvalidInventory, match=r'line 3: .*finite'):
        documents.read(text)


@pytest.mark.parametrize('key', ['1', 'true', 'null', '2026-01-01'])
def test_keys_that_are_no_texts_are_named_with_their_line(key):
    text = f'flavor: 1\nhints:\n  {key}: x\n'.encode()
    with pytest.raises(
        errors.InvalidRequest, match=r'line 3: the key .*quote'
    ):
        document_text.read(text, 'r.yaml', errors.InvalidRequest)
    quoted = text.replace(key.encode(), f"'{key}'".encode())
    assert document_text.read(quoted, '', errors.InvalidRequest)[1] == []


def _doubling(first: str, line: str) -> bytes:
    """Return a document whose aliases stand for 9 ** 30 values."""
    lines = [f'a0: &a0 {first}']
    for at in range(30):
        aliases = ','.join([f'*a{at}'] * 9)
        lines.append(f'a{at + 1}: &a{at + 1} {line.format(aliases)}')
    return '\n'.join(lines).encode()


@pytest.mark.parametrize(
    ('text', 'told'),
    [
        (b'a: &a [*a]', 'contains itself'),
        (b'&a [*a]', 'contains itself'),
        (b'a: &a {b: {c: [*a]}}', 'contains itself'),
        (b'a: &a\n  <<: *a', 'contains itself'),
        (b'? &k [*k]\n: 1', 'contains itself'),
        (_doubling('[x]', '[{}]'), 'too many values'),
        (_doubling('{x: 1}', '{{<<: [{}]}}'), 'too many values'),
    ],
)
def test_aliases_that_have_no_end_are_errors(text, told):
    for fault in (errors.InvalidInventory, errors.InvalidRequest):
        with pytest.raises(fault, match=told):
            documents.read(text, 'a.yaml', fault)
    with pytest.raises(errors.ConfigurationError, match=told):
        policy_file.read(text, 'a.yaml')


def test_aliases_are_values():
    text = b'a: &a {x: [1]}\nb: *a\nc: [*a, *a]\nd: {<<: *a, y: 2}'
    value = {'x': [1]}
    assert documents.read(text) == {
        'a': value, 'b': value, 'c': [value, value], 'd': {'x': [1], 'y': 2},
    }  # fmt: skip


def test_a_file_without_end_is_too_large():
    with (
        open('/dev/zero', 'rb') as file,
        pytest.raises(OSError, match='File too large') as raised,
    ):
        document_text.read_all(file)
    assert raised.value.filename == '/dev/zero'
