"""The picture of the cloud: its cells, their order and the PNG."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from scheduler_service.pages import picture
from scheduler_service.pages.picture import Picture
from scheduler_service.settings import Settings
from scheduler_service.testing import table as build_table

SETTINGS = Settings(ram_allocation_ratio=1.0, cpu_allocation_ratio=1.0)


def cloud(hosts, zones=None, **how):
    """Return the picture of hosts, some of them in zones."""
    aggregates = [
        {'id': n, 'name': zone, 'hosts': names,
         'metadata': {'availability_zone': zone}}
        for n, (zone, names) in enumerate((zones or {}).items())
    ]  # fmt: skip
    table = build_table({'hosts': hosts, 'aggregates': aggregates})
    look = {'by': 'zone', 'resource': None, **how}
    return Picture(table, SETTINGS, **look)


def host(name, used=0, vcpus_used=0, **more):
    return {'host': name, 'memory_mb': 100, 'memory_mb_used': used,
            'vcpus': 10, 'vcpus_used': vcpus_used, **more}  # fmt: skip


def decoded(content):
    """Return the colours of a picture, uint8[height, width, 3], and alpha."""
    assert content.startswith(b'\x89PNG\r\n\x1a\n')
    chunks, at = {}, 8
    while at < len(content):
        (length,) = struct.unpack('>I', content[at : at + 4])
        kind = content[at + 4 : at + 8]
        body = content[at + 8 : at + 8 + length]
        (check,) = struct.unpack('>I', content[at + 8 + length :][:4])
        assert check == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + length
    width, height, depth, colour = struct.unpack('>IIBB', chunks[b'IHDR'][:10])
    assert (depth, colour) == (8, 3)
    palette = np.frombuffer(chunks[b'PLTE'], np.uint8).reshape(-1, 3)
    lines = np.frombuffer(zlib.decompress(chunks[b'IDAT']), np.uint8)
    lines = lines.reshape(height, width + 1)
    assert not lines[:, 0].any()
    return palette[lines[:, 1:]], lines[:, 1:] > 0


def test_cells_stand_by_zone_and_name_and_are_found_again():
    names = ['b', 'a', 'd', 'c', 'e']
    made = cloud(
        [host(name) for name in names], {'z2': ['d', 'a'], 'z1': ['c']}
    )
    stand = {
        name: [made.table.host_at(row) for row in rows]
        for name, rows in made.blocks.items()
    }
    assert stand == {'nova': ['b', 'e'], 'z1': ['c'], 'z2': ['a', 'd']}
    block, size = 'z2', made.size
    for x, y, found in (
        (0, 0, 'a'), (size, 0, 'd'), (2 * size - 1, size - 1, 'd'),
        (2 * size, 0, None), (0, size, None), (picture.WIDTH, 0, None),
    ):  # fmt: skip
        row = made.at(block, x, y)
        assert (row if row is None else made.table.host_at(row)) == found


def test_the_colour_says_how_full_and_the_shape_who_is_out():
    made = cloud(
        [
            host('a', 5),
            host('b', 5, vcpus_used=9),
            host('c', 250),
            host('d', 0, status='disabled'),
            host('e', 0, state='down'),
            {'host': 'f'},
        ]
    )
    assert (made.disabled, made.down) == (1, 1)
    assert [made.counts[n] for n in (0, 9, 10, 11)] == [3, 1, 1, 1]
    size, block = made.size, 'nova'
    pixels, filled = decoded(made.png(block))
    assert pixels.shape[:2] == (made.height(block), picture.WIDTH)
    cells = [
        pixels[: size - 1, n * size : (n + 1) * size - 1] for n in range(6)
    ]
    shapes = [
        filled[: size - 1, n * size : (n + 1) * size - 1] for n in range(6)
    ]
    for n, level in ((0, 0), (1, 9), (2, 10), (5, 11)):
        assert shapes[n].all()
        assert '#' + bytes(cells[n][0, 0]).hex() == picture.COLOURS[level]
    middle = size // 2 - 1
    assert (shapes[3][0].all(), shapes[3][middle, middle]) == (True, False)
    assert (shapes[4][0, middle], shapes[4][middle, middle]) == (False, True)
    # Who is out keeps the colour.
    for n in (3, 4):
        assert '#' + bytes(cells[n][0, 0]).hex() == picture.COLOURS[0]
    # Nothing stands behind the last host.
    assert not filled[:, 6 * size :].any()


def test_hosts_that_a_flavor_does_not_fit_on_are_darker():
    table = build_table({'hosts': [host('a', 5), host('b', 5)]})
    fitting = np.array([True, False])
    made = Picture(table, SETTINGS, 'zone', None, fitting)
    pixels, filled = decoded(made.png('nova'))
    bright, dark = pixels[0, 0], pixels[0, made.size]
    assert '#' + bytes(bright).hex() == picture.COLOURS[0]
    assert filled[0, made.size]
    assert (dark < bright).all()


# Red, green and blue as those see them who lack one kind of cones, after
# Machado, Oliveira and Fernandes (2009).
SIGHT = {
    'all': np.eye(3),
    'no red': np.array([[0.152286, 1.052583, -0.204868],
                        [0.114503, 0.786281, 0.099216],
                        [-0.003882, -0.048116, 1.051998]]),
    'no green': np.array([[0.367322, 0.860646, -0.227968],
                          [0.280085, 0.672501, 0.047413],
                          [-0.011820, 0.042940, 0.968881]]),
}  # fmt: skip


def lab(rgb):
    """Return colours of linear RGB as CIE L*a*b*, float64[n, 3]."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722],
                       [0.0193, 0.1192, 0.9505]])  # fmt: skip
    xyz = np.clip(rgb, 0, 1) @ to_xyz.T / (0.9505, 1.0, 1.089)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    x, y, z = f.T
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)]).T


def test_colours_from_half_to_full_are_told_apart_by_all_who_see():
    codes = [*picture.COLOURS[5:11], '#1d232a']
    rgb = np.array([[*bytes.fromhex(code[1:])] for code in codes]) / 255
    linear = np.where(
        rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4
    )
    for name, sight in SIGHT.items():
        seen = lab(linear @ sight.T)
        steps = np.linalg.norm(np.diff(seen[:-1], axis=0), axis=1)
        # A step of 2.3 is just noticed side by side.
        assert steps.min() > 12, (name, steps)
        # The fuller, the lighter; and all are lighter than the ground.
        assert (np.diff(seen[:-1, 0]) > 3).all(), (name, seen[:, 0])
        assert seen[0, 0] - seen[-1, 0] > 25, name


def test_one_resource_colours_where_it_is_chosen():
    hosts = [host('a', 95, vcpus_used=1)]
    assert cloud(hosts).counts[9] == 1
    assert cloud(hosts, resource='VCPU').counts[1] == 1


def test_blocks_are_by_aggregate_and_cell_too():
    cell = '11111111-2222-4333-8444-555555555555'
    hosts = [host('a', cell_uuid=cell), host('b')]
    zones = {'z': ['a'], 'y': ['a']}
    assert list(cloud(hosts, zones, by='aggregate').blocks) == ['none', 'y, z']
    assert list(cloud(hosts, by='cell').blocks) == [cell, 'no cell']


def test_shapes_are_told_apart_at_every_size():
    for size in (4, 6, 12):
        square, frame, cross = (
            picture._glyphs(size)[shape] > 0
            for shape in (0, picture._DISABLED, picture._DOWN)
        )
        assert 0 < frame.sum() < square.sum()
        assert 0 < cross.sum() < square.sum()
        assert (frame != cross).any()


def test_a_cloud_without_hosts_has_no_blocks():
    made = cloud([])
    assert (made.blocks, sum(made.counts)) == ({}, 0)
