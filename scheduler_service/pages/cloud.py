"""The cloud: how full hosts are, where a flavor fits, and how often."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib import parse

from scheduler_service import errors, texts
from scheduler_service.http.message import TEXT, HttpRequest, Reply
from scheduler_service.http.v1 import (
    Criteria,
    one_of,
    read_criteria,
    segment,
)
from scheduler_service.model import (
    Flavor,
    Request,
    client_documents,
    documents,
)
from scheduler_service.pages import picture, words
from scheduler_service.pages.frame import Frame, file, without_empty

# Of a flavor: the resource class that has the same unit, and what it is.
_SIZES = {'vcpus': ('VCPU', 'vCPUs'), 'memory_mb': ('MEMORY_MB', 'memory'),
          'root_gb': ('DISK_GB', 'disk'),
          'ephemeral_gb': ('DISK_GB', 'ephemeral disk'),
          'swap': ('MEMORY_MB', 'swap')}  # fmt: skip
_POINT = re.compile(r'(\d{1,6}),(\d{1,6})(,name)?', re.ASCII)
_LOOK: Criteria = {
    'by': (one_of(*picture.PLACES), 'zone'),
    'resource': (str, ''),
    'flavor': (str, ''),
    'block': (str, ''),
}


def page(frame: Frame, request: HttpRequest) -> Reply:
    """Show all hosts, coloured by how full they are, and what fits where."""
    look = _look(frame, without_empty(request, _LOOK))
    by, resource, typed = look['by'], look['resource'], look['flavor']
    flavors, missing = _lately(frame)
    flavor, text = None, ''
    if typed:
        flavor = _flavor(frame, typed)
        flavors, text = {typed: flavor} | flavors, _text(flavor)
    made = frame.pictures.get(by, resource or None, flavor)
    matrix = [(key, one.name or one.flavorid, _shown(one), _fits(frame, one))
              for key, one in flavors.items()]  # fmt: skip
    zones, _ = frame.listings.zones(None)
    shown = {'by': by, 'resource': resource, 'flavor': typed}
    filled = {name: value for name, value in shown.items() if value}
    return frame.page(
        'cloud.html', made=made, look=look, places=picture.PLACES,
        width=picture.WIDTH, flavor=flavor, missing=missing, matrix=matrix,
        picture_of=parse.urlencode(filled), zones=zones, text=text,
        chosen=matrix[0][-1] if flavor else {},
        columns=sorted({zone for *_, fits in matrix for zone in fits}),
        levels=zip(picture.LEVELS, made.counts, picture.COLOURS, strict=True),
    )  # fmt: skip


def image(frame: Frame, request: HttpRequest) -> Reply:
    """Return the picture of a block."""
    look = _look(frame, request)
    flavor = _flavor(frame, look['flavor']) if look['flavor'] else None
    made = frame.pictures.get(look['by'], look['resource'] or None, flavor)
    picture.check('block', look['block'], made.blocks)
    return file(made.png(look['block']), 'image/png')


def _look(frame: Frame, request: HttpRequest) -> dict[str, str]:
    """Return all parameters of the cloud; a text is empty by default."""
    frame.api.authorize(request, 'list_hosts')
    defaults = {name: default for name, (_, default) in _LOOK.items()}
    return defaults | read_criteria(request, _LOOK)


def _lately(frame: Frame) -> tuple[dict[str, Flavor], str]:
    """Return the flavors asked for lately by name, or why they are missing.

    Of several with one name, all but the first have more in their name.
    """
    stored, missing = frame.stored(frame.listings.flavors)
    names: dict[str, Flavor] = {}
    for flavor, _ in stored or ():
        text = _text(flavor)
        name = flavor.name or flavor.flavorid or text
        names[f'{name} ({text})' if name in names else name] = flavor
    return names, missing


def _text(flavor: Flavor) -> str:
    """Return a flavor as :func:`client_documents.flavor_of_text` reads it."""
    sizes = {name: getattr(flavor, name) for name in _SIZES}
    filled = {name: size for name, size in sizes.items() if size}
    pairs = (filled | flavor.extra_specs).items()
    return ','.join(f'{name}={value}' for name, value in pairs)


def _shown(flavor: Flavor) -> str:
    """Return what a flavor has, such as 2 vCPUs, 4 GB memory, hw:x=y."""
    sizes = [
        f'{words.amount(getattr(flavor, name), of)} {what}'
        for name, (of, what) in _SIZES.items() if getattr(flavor, name)
    ]  # fmt: skip
    specs = flavor.extra_specs.items()
    return ', '.join([*sizes, *(f'{name}={spec}' for name, spec in specs)])


def _flavor(frame: Frame, text: str) -> Flavor:
    """Return the flavor that a text means: sizes, or a name asked for lately.

    :raises InvalidRequest: the text means none
    """
    try:
        document = {'flavor': client_documents.flavor_of_text(text)}
        return documents.checked_request(document).flavor
    except errors.InvalidRequest as fault:
        flavors, _ = _lately(frame)
        if text in flavors:
            return flavors[text]
        wrong = f'{fault}{texts.nearest(text, [*flavors])}'
        raise errors.InvalidRequest.at('flavor', wrong) from None


def _fits(frame: Frame, flavor: Flavor) -> dict[str, Mapping[str, Any]]:
    """Return how many more of a flavor fit in each zone."""
    rows, _ = frame.listings.fits(Request(flavor=flavor), 'zone')
    return {row['zone']: row for row in rows}


def cell(frame: Frame, request: HttpRequest) -> Reply:
    """Lead to the host at a point of a block, or tell its name.

    The query is ``X,Y``, as browsers send it of a click on a picture, or
    ``X,Y,name``, as the script asks.
    """
    frame.api.authorize(request, 'list_hosts')
    place = parse.unquote(request.path.rpartition('/')[2])
    by, _, name = place.partition(':')
    point = _POINT.fullmatch(parse.unquote(request.query))
    if point is None:
        raise errors.InvalidRequest('expected X,Y, a point of the picture')
    picture.check('by', by, picture.PLACES)
    made = frame.pictures.get(by, None)
    picture.check('block', name, made.blocks)
    row = made.at(name, int(point[1]), int(point[2]))
    if row is None:
        raise errors.NotFound('There is no host at this point')
    host, table = made.table.host_at(row), made.table
    if not point[3]:
        path = f'/hosts/{segment(host)}'
        return Reply(302, b'', headers=(('Location', path),))
    state = 'up' if table.number('up')[row] else 'down'
    enabled = 'enabled' if table.number('enabled')[row] else 'disabled'
    level = picture.LEVELS[made.levels[row]]
    told = texts.printable(f'{host}: {state}, {enabled}, {level}')
    return file(told.encode(), TEXT)
