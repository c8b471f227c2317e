"""What callers are told has an order; see benchmarks.histories."""

import pytest

from tests.rigs import histories
from tests.support import clouds

# See clouds.clean.
pytestmark = [
    pytest.mark.broker,
    pytest.mark.db,
    pytest.mark.filterwarnings('ignore:unclosed <socket:ResourceWarning'),
]


# Ten callers share seventeen instances: each instance is contended for
# within the first second, and orders that do not fit show from then on.
@pytest.mark.parametrize(
    ('kind', 'daemons', 'seconds'),
    [
        ('sqlite', 2, 5),
        pytest.param('postgresql', 3, 6, marks=pytest.mark.slow),
        pytest.param('mariadb', 3, 6, marks=pytest.mark.slow),
    ],
)
def test_answers_have_an_order_when_callers_share_instances(
    kind, daemons, seconds, make_url, quorum_bus
):
    with clouds.running(make_url(kind), quorum_bus, daemons) as cloud:
        cloud.bring(histories.inventory())
        told = histories.run(cloud, seconds)
    assert told['calls']['select'] > 4
    assert told['samples'] > 4
    assert told['first_wrong'] == []
    assert told['first_without_order'] == []
    assert told['first_untrue'] == []
    assert told['gave_up'] == 0
