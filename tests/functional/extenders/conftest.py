"""Daemons that have extenders."""

import json
import uuid
from typing import Any

import pytest


@pytest.fixture
def serve_with(make_service, tmp_path):
    """Give a function that starts a service with extenders."""

    def make(*listed: dict[str, Any], policy: Any = None, **more: Any) -> Any:
        document = policy or {
            'apiVersion': 'kubescheduler.config.k8s.io/v1',
            'kind': 'KubeSchedulerConfiguration',
            'extenders': list(listed),
        }
        path = tmp_path / f'{uuid.uuid4().hex}.json'
        path.write_text(json.dumps(document))
        return make_service(extender__policy_file=str(path), **more)

    return make
