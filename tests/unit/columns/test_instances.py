"""The index of instances, which shares what did not change."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.columns import InstanceIndex
from scheduler_service.columns.instances import PlacedInstance


@given(
    st.lists(
        st.tuples(
            st.sampled_from('uvwxyz'), st.sampled_from(['h1', 'h2', None])
        )
    )
)
def test_index_equals_a_dict_when_instances_move(moves):
    index, plain = (
        InstanceIndex.of([PlacedInstance('u', 'h1', 'h1')]),
        {'u': 'h1'},
    )
    for uuid, host in moves:
        if host is None:
            index = index.changed([], [uuid])
            plain.pop(uuid, None)
        else:
            index = index.changed([PlacedInstance(uuid, host, host)])
            plain[uuid] = host
    assert {one.uuid: one.host for one in index} == plain
    assert len(index) == len(plain)
    for host in ('h1', 'h2'):
        assert {one.uuid for one in index.on_host(host)} == {
            uuid for uuid, there in plain.items() if there == host
        }


@given(
    st.lists(
        st.tuples(
            st.sampled_from('uvwxyz'), st.sampled_from(['h1', 'h2', None])
        )
    )
)
def test_instances_of_a_host_follow_what_is_put_into_the_index(moves):
    index = InstanceIndex.of([PlacedInstance('u', 'h1', 'h1')])
    plain = {'u': 'h1'}
    for uuid, host in moves:
        placed = host and PlacedInstance(uuid, host, host)
        index.put(uuid, placed or None)
        plain[uuid] = host
        for name in ('h1', 'h2'):
            assert {one.uuid for one in index.on_host(name)} == {
                uuid for uuid, there in plain.items() if there == name
            }
