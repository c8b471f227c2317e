"""A request is read in one place, and named keys by their filters."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

from tests.support.paths import ROOT

PACKAGE = ROOT / 'scheduler_service'
# The place, and the documents that it is made of.
ROOM = ('model/requirements/', 'model/request.py', 'model/request_parts.py')
READS = frozenset(
    ('extra_specs', 'image_properties', 'image_pairs', 'scheduler_hints',
     'hint', 'specs')
)  # fmt: skip
FIGURES = frozenset(('vcpus', 'memory_mb', 'root_gb', 'ephemeral_gb', 'swap'))
# A filter or weigher that is about certain keys, which it compares with hosts
# or their aggregates, and nothing else of the request's.
OF_NAMED_KEYS = {
    'filters/hosts/affinity_filter.py': {'hint'},
    'filters/hosts/aggregate_filter.py': {'extra_specs', 'image_properties'},
    'filters/hosts/aggregate_instance_type_filter.py': {'extra_specs'},
    'filters/hosts/compute_capabilities_filter.py': {'extra_specs'},
    'filters/hosts/image_properties_filter.py': {'image_properties'},
    'filters/hosts/json_filter.py': {'hint'},
    'filters/hosts/simple_cidr_affinity_filter.py': {
        'hint', 'scheduler_hints',
    },
    'weighers/image_properties_weigher.py': {'image_properties'},
}  # fmt: skip
# Others that hand them on as they are.
AS_THEY_ARE = {
    # A face makes our document of its wire.
    'compute/translation.py': {
        'extra_specs', 'scheduler_hints', *FIGURES,
    },
    # Request filters take the traits of features from the place.
    'request_filters.py': {'specs'},
    # An instance is stored with the properties of its image.
    'store/ports/claimer.py': {'properties'},
    # A recheck of a rebuild is not a request for hosts.
    'pipeline/filtering.py': {'hint'},
    # One condition after the other is left out, whatever it means.
    'planning/comparison.py': {
        'extra_specs', 'properties', 'scheduler_hints',
    },
    # A flavor is shown as it can be typed.
    'pages/cloud.py': {'extra_specs'},
    # What an instance was asked with is shown, and kept with it.
    'pipeline/selection.py': {'image_pairs'},
}  # fmt: skip


def reads(tree: ast.AST) -> Iterator[str]:
    """Yield what a module reads of requests and flavors."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        owner = node.value
        name = getattr(owner, 'attr', None) or getattr(owner, 'id', '')
        if node.attr in READS and name != 'self':
            yield node.attr
        if node.attr == 'properties' and name == 'image':
            yield node.attr
        if node.attr in FIGURES and name == 'flavor':
            yield node.attr


def modules() -> Iterator[tuple[str, pathlib.Path]]:
    for path in sorted(PACKAGE.rglob('*.py')):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(ROOM):
            yield name, path


def test_nothing_else_reads_extra_specs_properties_hints_or_figures():
    allowed = {**OF_NAMED_KEYS, **AS_THEY_ARE}
    found = {
        name: {*reads(ast.parse(path.read_text()))} for name, path in modules()
    }
    assert {name: what for name, what in found.items() if what} == allowed


def test_the_rule_sees_what_it_is_for():
    text = (
        'def f(request):\n'
        '    request.flavor.extra_specs["hw:x"]\n'
        '    request.image_properties.get("hw_x")\n'
        '    request.hint("x")\n'
        '    request.flavor.vcpus + table.memory_mb\n'
    )
    assert sorted(reads(ast.parse(text))) == [
        'extra_specs', 'hint', 'image_properties', 'vcpus',
    ]  # fmt: skip
