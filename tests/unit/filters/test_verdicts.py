"""Filters on few attributes: which hosts pass, and why others do not."""

from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.filters.hosts import BUILT_IN
from tests.support.plugins import (
    aggregate,
    has_opinion,
    inventory,
    passing,
    plain_hosts,
    reason,
)

ZONE = 'AvailabilityZoneFilter'
IMAGE = 'AggregateImagePropertiesIsolation'
TENANCY = 'AggregateMultiTenancyIsolation'
FLAVOR = 'AggregateTypeAffinityFilter'
SPECS = 'AggregateInstanceExtraSpecsFilter'
ISOLATED = 'IsolatedHostsFilter'
METRICS = 'MetricsFilter'
FILTERS = {kind.name: kind() for kind in BUILT_IN}

STATES = inventory(
    a={},
    b={'state': 'down'},
    c={'status': 'disabled'},
    d={'status': 'disabled', 'state': 'down'},
    e={'status': 'disabled', 'disabled_reason': 'broken fan'},
)
# a is in z1, b in z1, z2 and z3, c in no zone of an aggregate.
ZONES = plain_hosts(
    'abc',
    aggregate('a', 'b', availability_zone='z1'),
    aggregate('b', availability_zone='z2, z3'),
    aggregate('c', ssd='true'),
)
# a is for windows, b for windows and linux, c for all images.
IMAGES = plain_hosts(
    'abc',
    aggregate('a', os_distro='windows'),
    aggregate('b', os_distro='windows'),
    aggregate('b', os_distro='linux, plan9'),
)
BUSES = plain_hosts(
    'ab',
    aggregate('a', os_distro='windows'),
    aggregate('b', hw_disk_bus='scsi'),
)
HW_ALONE = {
    'aggregate_image_properties_isolation_namespace': 'hw',
    'aggregate_image_properties_isolation_separator': '_',
}
# a is for p1 to p4, b for p5, c for all projects, d for nobody.
TENANTS = plain_hosts(
    'abcd',
    aggregate('a', filter_tenant_id='p1, p2', filter_tenant_id2='p3'),
    aggregate('a', **{'filter_tenant_id:3': 'p4'}),
    aggregate('b', filter_tenant_id='p5'),
    aggregate('b', 'c', ssd='true'),
    aggregate('d', filter_tenant_id=''),
)
# a is for m1.small, b for all named flavors, c for any, d for none.
FLAVORS = plain_hosts(
    'abcd',
    aggregate('a', 'b', instance_type='m1.small'),
    aggregate('b', instance_type='m1.large, m1.huge'),
    aggregate('d', instance_type=''),
)
AB = inventory(a={}, b={})
LISTED = {'image': {'id': 'listed'}}
OTHERS = ({'image': {'id': 'other'}}, {})
REPORTED = inventory(
    a={'metrics': [{'name': 'load', 'value': 1}, {'name': 'heat'}]},
    b={'metrics': [{'name': 'load', 'value': 0}]},
    c={'metrics': None},
)
NODES = {
    'hosts': [
        {'host': 'a', 'hypervisor_hostname': 'a-1'},
        {'host': 'a', 'hypervisor_hostname': 'a-2'},
        {'host': 'b'},
    ]
}


def zone(name: Any) -> dict[str, Any]:
    return {'availability_zone': name}


def image(**properties: Any) -> dict[str, Any]:
    return {'image': {'properties': properties}}


def project(name: Any) -> dict[str, Any]:
    return {'project_id': name}


def flavor(name: Any) -> dict[str, Any]:
    return {'flavor': {'name': name}}


def specs(**extra_specs: str) -> dict[str, Any]:
    return {'flavor': {'extra_specs': extra_specs}}


def retry(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {'retry': {'num_attempts': 2, 'hosts': [list(p) for p in pairs]}}


def isolated(*images: str, on: str = '', strict: bool = True) -> Any:
    return {
        'isolated_images': images,
        'isolated_hosts': tuple(on),
        'restrict_isolated_hosts_to_isolated_images': strict,
    }


def metrics(*setting: str) -> dict[str, Any]:
    return {'metrics_weight_setting': setting}


@pytest.mark.parametrize(
    ('name', 'document', 'request_', 'expected', 'settings'),
    [
        (*case, {})
        for case in (
            ('AllHostsFilter', STATES, {}, 'abcde'),
            ('ComputeFilter', STATES, {}, 'a'),
            (ZONE, ZONES, zone('z1'), 'ab'),
            (ZONE, ZONES, zone('z2'), 'b'),
            (ZONE, ZONES, zone('z3'), 'b'),
            # Hosts without a zone are in the default zone, others are not.
            (ZONE, ZONES, zone('nova'), 'c'),
            (ZONE, ZONES, zone('Z1'), ''),
            (ZONE, ZONES, zone('nowhere'), ''),
            # An empty zone in metadata is one that nobody requests.
            (
                ZONE,
                plain_hosts('a', aggregate('a', availability_zone='')),
                zone('nova'),
                '',
            ),
            (IMAGE, IMAGES, image(os_distro='windows'), 'abc'),
            # Values of several aggregates, or with commas, are alternatives.
            (IMAGE, IMAGES, image(os_distro='linux'), 'bc'),
            (IMAGE, IMAGES, image(os_distro='plan9'), 'bc'),
            (IMAGE, IMAGES, image(os_distro='bsd'), 'c'),
            # The value of an image is not split at commas.
            (IMAGE, IMAGES, image(os_distro='windows,linux'), 'c'),
            # Compute services do not know the property.
            (
                IMAGE,
                plain_hosts('a', aggregate('a', licence_x='1')),
                image(licence_x='2'),
                'a',
            ),
            # True is written "True" and a false value is not compared.
            *(
                (
                    IMAGE,
                    plain_hosts('a', aggregate('a', hw_boot_menu=metadata)),
                    image(hw_boot_menu=value),
                    expected,
                )
                for value, metadata, expected in (
                    (2, '2', 'a'),
                    (True, 'true', ''),
                    (True, 'True', 'a'),
                    (False, 'true', 'a'),
                )
            ),
            *((TENANCY, TENANTS, project(f'p{n}'), 'ac') for n in range(1, 5)),
            (TENANCY, TENANTS, project('p5'), 'bc'),
            # The filter keeps others out; it does not keep a project in.
            *((TENANCY, TENANTS, project(p), 'c') for p in ('p9', 'P1', None)),
            (FLAVOR, FLAVORS, flavor('m1.small'), 'abc'),
            (FLAVOR, FLAVORS, flavor('m1.large'), 'bc'),
            (FLAVOR, FLAVORS, flavor('m1.huge'), 'bc'),
            (FLAVOR, FLAVORS, flavor('M1.small'), 'c'),
            (FLAVOR, FLAVORS, flavor(None), 'c'),
            # The pair of host and node counts.
            ('RetryFilter', NODES, retry(('a', 'a-1')), 'ab'),
            ('RetryFilter', NODES, retry(('a', 'a-1'), ('a', 'a-2')), 'b'),
            ('RetryFilter', NODES, retry(('b', 'b')), 'a'),
            ('RetryFilter', NODES, retry(('b', 'x'), ('B', 'B')), 'ab'),
        )
    ]
    + [
        (
            ZONE,
            ZONES,
            zone('home'),
            'c',
            {'default_availability_zone': 'home'},
        ),
        # With a namespace only its properties are compared.
        (
            IMAGE,
            BUSES,
            image(os_distro='linux', hw_disk_bus='virtio'),
            'a',
            HW_ALONE,
        ),
        (ISOLATED, AB, LISTED, 'a', isolated('listed', on='a')),
        (ISOLATED, AB, LISTED, 'b', isolated(on='a')),
        (ISOLATED, AB, LISTED, 'ab', isolated(on='a', strict=False)),
        # Isolated images have nowhere to go without isolated hosts.
        (ISOLATED, AB, LISTED, '', isolated('listed')),
        (ISOLATED, AB, LISTED, 'ab', isolated()),
        *(
            (ISOLATED, AB, request, expected, settings)
            for request in OTHERS
            for expected, settings in (
                ('b', isolated('listed', on='a')),
                ('ab', isolated('listed', on='a', strict=False)),
                ('b', isolated(on='a')),
                ('ab', isolated('listed')),
                # Names of hosts are compared exactly.
                ('ab', isolated('listed', on='A')),
            )
        ),
        (METRICS, REPORTED, {}, 'ab', metrics('load=1.0')),
        (METRICS, REPORTED, {}, 'a', metrics('load=1.0', 'heat=-1')),
        # A ratio of 0 does not make a metric optional.
        (METRICS, REPORTED, {}, 'a', metrics('heat=0')),
        (METRICS, REPORTED, {}, '', metrics('unknown=1.0')),
        # Names are not stripped.
        (METRICS, REPORTED, {}, '', metrics(' load=1.0')),
    ],
)
def test_hosts_that_pass(name, document, request_, expected, settings):
    hosts = passing(FILTERS[name], document, request_, **settings)
    assert ''.join(hosts) == expected


SCOPE = 'aggregate_instance_extra_specs'


@pytest.mark.parametrize(
    ('extra_specs', 'metadata', 'passes'),
    [
        ({'ssd': 'true'}, [{'ssd': 'true'}], True),
        ({'ssd': 'true'}, [{'ssd': 'false'}], False),
        ({'ssd': 'true'}, [], False),
        # Any of several values suffices: of aggregates, or with commas.
        ({'ssd': 'true'}, [{'ssd': 'false'}, {'ssd': 'true'}], True),
        ({'ssd': 'true'}, [{'ssd': 'false, true'}], True),
        # Each spec may be satisfied by another aggregate.
        ({'ssd': 'true', 'gpu': '1'}, [{'ssd': 'true'}, {'gpu': '1'}], True),
        ({'ssd': 'true', 'gpu': '1'}, [{'ssd': 'true'}], False),
        ({'Ssd': 'true'}, [{'ssd': 'true'}], False),
        ({'k': ''}, [{'k': ''}], True),
        # The values are split at commas, the requirement is not.
        ({'k': 'a,b'}, [{'k': 'a,b'}], False),
        # Requirements use the operators of extra specs.
        ({'n': '>= 5'}, [{'n': '7'}], True),
        ({'n': '= 5'}, [{'n': '7'}], True),
        ({'n': '== 5'}, [{'n': '7'}], False),
        ({'n': '<or> 5 <or> 7'}, [{'n': '7'}], True),
        # Some value differs, which suffices; a missing key does not.
        ({'n': 's!= 7'}, [{'n': '7'}, {'n': '8'}], True),
        ({'n': 's!= 7'}, [], False),
        # Each value is compared alone; one that cannot be does not matter.
        ({'n': '<all-in> a b'}, [{'n': 'a,b'}], False),
        ({'n': '<all-in> a b'}, [{'n': 'a b'}], True),
        ({'n': '>= 5'}, [{'n': 'x'}, {'n': '7'}], True),
        # Only the scope of the filter counts.
        ({f'{SCOPE}:ssd': 'true'}, [{'ssd': 'true'}], True),
        ({f'{SCOPE}:ssd': 'true'}, [{}], False),
        # It is removed from the spec, not from the metadata.
        ({f'{SCOPE}:ssd': 'true'}, [{f'{SCOPE}:ssd': 'true'}], False),
        # Only the first colon separates a scope.
        ({f'{SCOPE}:a:b': 'true'}, [{'a:b': 'true'}], True),
        ({'capabilities:ssd': 'true'}, [{}], True),
    ],
)
def test_each_extra_spec_has_to_match_metadata(extra_specs, metadata, passes):
    document = plain_hosts('a', *(aggregate('a', **one) for one in metadata))
    hosts = passing(FILTERS[SPECS], document, specs(**extra_specs))
    assert hosts == (['a'] if passes else [])


def test_an_extra_spec_that_is_no_requirement_fails_the_request():
    document = plain_hosts('a', aggregate('a', n='5'))
    with pytest.raises(errors.InvalidRequest):
        passing(FILTERS[SPECS], document, specs(n='>= x'))


@pytest.mark.parametrize(
    ('name', 'requests', 'settings'),
    [
        ('AllHostsFilter', [{}], [{}]),
        (ZONE, [zone(None), zone('')], [{}]),
        (IMAGE, [image(), image(os_distro='')], [{}]),
        (SPECS, [specs(), specs(**{'hw:cpu_policy': 'shared'})], [{}]),
        ('RetryFilter', [{}, {'retry': None}, retry()], [{}]),
        (METRICS, [{}], [metrics(*s) for s in
                         ([], ['load'], ['=1.0'], ['load=much'])]),
    ],
)  # fmt: skip
def test_there_is_no_opinion_where_nothing_is_asked(name, requests, settings):
    for document in (STATES, ZONES, IMAGES, REPORTED):
        for request in requests:
            for setting in settings:
                one = FILTERS[name]
                assert not has_opinion(one, document, request, **setting)


@pytest.mark.parametrize(
    ('name', 'document', 'request_', 'host', 'sentence', 'settings'),
    [
        (*case, {})
        for case in (
            ('ComputeFilter', STATES, {}, 'b', 'the host is down'),
            ('ComputeFilter', STATES, {}, 'c', 'the host is disabled'),
            # What the operator did comes before what the host did.
            ('ComputeFilter', STATES, {}, 'd', 'the host is disabled'),
            ('ComputeFilter', STATES, {}, 'e',
             'the host is disabled (broken fan)'),
            (ZONE, ZONES, zone('z9'), 'b',
             'zone z9 requested, the host is in z1, z2, z3'),
            (IMAGE, IMAGES, image(os_distro='bsd'), 'b',
             'the image has os_distro=bsd, aggregate metadata allows '
             'os_distro=linux,plan9,windows'),
            # Other projects are not named.
            (TENANCY, TENANTS, project('p9'), 'a',
             'filter_tenant_id metadata reserves the host for 4 other '
             'projects than p9'),
            (TENANCY, TENANTS, project('p9'), 'b',
             'filter_tenant_id metadata reserves the host for 1 other '
             'project than p9'),
            (FLAVOR, FLAVORS, flavor('m2'), 'b',
             'the host is reserved for the flavors m1.huge, m1.large, '
             'm1.small; the request has m2'),
            (SPECS, AB, specs(ssd='true'), 'a',
             'the flavor requires ssd=true, no aggregate of the host has the '
             'metadata key'),
            (SPECS, plain_hosts('a', aggregate('a', ssd='no,false')),
             specs(ssd='true'), 'a',
             'the flavor requires ssd=true, aggregate metadata has '
             'ssd=false,no'),
            ('RetryFilter', NODES, retry(('b', 'b')), 'b',
             'the host was already tried for this request'),
        )
    ]
    + [
        (ISOLATED, AB, {}, 'a', 'the host is isolated, the image is not',
         isolated('listed', on='a')),
        (ISOLATED, AB, LISTED, 'b', 'the image is isolated, the host is not',
         isolated('listed', on='a')),
        (METRICS, REPORTED, {}, 'c',
         'the host does not report the metrics load, heat',
         metrics('load=1', 'heat=1')),
    ],
)  # fmt: skip
def test_the_reason(name, document, request_, host, sentence, settings):
    one = FILTERS[name]
    found = reason(one, document, request_, host=host, **settings)
    assert found == sentence
