"""compute_status_filter keeps requests off disabled hosts."""

from scheduler_service.request_filters import compute_status_filter
from tests.support.plugins import scope_of


def test_the_trait_of_disabled_hosts_is_forbidden_for_every_request():
    scope = scope_of(compute_status_filter)
    assert scope.query() == 'required=!COMPUTE_STATUS_DISABLED'
