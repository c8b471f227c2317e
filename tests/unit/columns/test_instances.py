"""The index of instances, which shares what did not change."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.columns import InstanceIndex
from scheduler_service.columns.instances import PlacedInstance

MOVES = st.lists(
    st.tuples(st.sampled_from('uvwxyz'), st.sampled_from(['h1', 'h2', None]))
)


@given(moves=MOVES, is_copied=st.booleans())
def test_index_equals_a_dict_when_instances_move(moves, is_copied):
    index = InstanceIndex.of([PlacedInstance('u', 'h1', 'h1')])
    plain = {'u': 'h1'}
    for uuid, host in moves:
        placed = PlacedInstance(uuid, host, host) if host else None
        if not is_copied:
            index.put(uuid, placed)
        elif placed:
            index = index.changed([placed])
        else:
            index = index.changed([], [uuid])
        plain[uuid] = host
        for name in ('h1', 'h2'):
            assert {one.uuid for one in index.on_host(name)} == {
                uuid for uuid, there in plain.items() if there == name
            }
    there = {uuid: host for uuid, host in plain.items() if host}
    assert {one.uuid: one.host for one in index} == there
    assert len(index) == len(there)
