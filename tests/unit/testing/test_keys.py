"""check_keys finds keys that say too little."""

import numpy as np
import pytest

from scheduler_service.filters.base import HostFilter
from scheduler_service.testing import check_keys
from scheduler_service.weighers import Weigher

HOSTS = {'hosts': [{'host': 'a'}, {'host': 'b'}]}
REQUESTS = [{'project_id': 'p1'}, {'project_id': 'p2'}]


class FirstHostOfOneProject(HostFilter):
    """Passes the first host only to the project p1."""

    def __init__(self, key):
        self.key = key

    def mask(self, table, request, settings):
        if request.project_id != 'p1':
            return None
        return np.array([True, False])

    def mask_key(self, table, request, settings):
        return self.key(request)


class ProjectWeigher(Weigher):
    """Weighs by the length of the project's id, and has no key."""

    def weigh(self, table, rows, request, settings):
        return np.ones(len(table))[rows]

    def weight_key(self, table, request, settings):
        return None


def test_a_key_that_tells_the_requests_apart_is_right():
    right = FirstHostOfOneProject(lambda request: request.project_id)
    check_keys(right, HOSTS, REQUESTS)


def test_a_key_that_is_the_same_for_both_is_wrong():
    wrong = FirstHostOfOneProject(lambda request: ())
    with pytest.raises(AssertionError, match=r'have the same key, \(\)'):
        check_keys(wrong, HOSTS, REQUESTS)


def test_no_key_with_an_opinion_is_wrong():
    wrong = FirstHostOfOneProject(lambda request: None)
    with pytest.raises(AssertionError, match='has no key'):
        check_keys(wrong, HOSTS, REQUESTS)
    with pytest.raises(AssertionError, match='ProjectWeigher'):
        check_keys(ProjectWeigher(), HOSTS, REQUESTS)


def test_the_default_promises_nothing():
    class Plain(FirstHostOfOneProject):
        mask_key = HostFilter.mask_key

    check_keys(Plain(None), HOSTS, REQUESTS)
