"""Counts placed pods anew every so often, for a daemon that has no watch.

It binds pods itself, and so knows where these go. What is gone, and what
others have placed, it learns from lists of all pods.
"""

from __future__ import annotations

import pathlib

import msgspec
import urllib3

from scheduler_service import tls_verify
from scheduler_service.engine.health import Health
from scheduler_service.kube.api import ApiLost, Listing, read_page
from scheduler_service.kube.following import Retrying
from scheduler_service.kube.pods import SELECTOR, PodSink

_TIMEOUT = urllib3.Timeout(connect=5.0, read=30.0)
_PAGE = 500


class PodLister:
    """Lists pods at an API server, without its client library.

    :param url: of the server
    :param token_file: path of a bearer token, read again for each list
    :param ca_file: path of the CA of its certificate; None: the system's CAs
    """

    def __init__(
        self, url: str, token_file: str | None, ca_file: str | None
    ) -> None:
        self._url = f'{url.rstrip("/")}/api/v1/pods'
        self._token_file = token_file
        self._pool = urllib3.PoolManager(
            ssl_context=tls_verify.of_server(has_ca=ca_file is not None),
            ca_certs=ca_file,
            maxsize=1,
            retries=False,
            timeout=_TIMEOUT,
        )

    def list(self, selector: str) -> Listing:
        """Return all pods.

        :param selector: of their fields
        :raises ApiLost: the API server does not answer, or refuses
        """
        pods: list[msgspec.Raw] = []
        asked = {'fieldSelector': selector, 'limit': str(_PAGE)}
        while True:
            page = read_page('pods', self._get(asked))
            pods += page.items or []
            following = page.metadata.following
            if not following:
                return Listing(pods, page.metadata.resource_version)
            asked['continue'] = following

    def _get(self, asked: dict[str, str]) -> bytes:
        headers = {}
        try:
            if self._token_file:
                token = pathlib.Path(self._token_file).read_text().strip()
                headers['Authorization'] = f'Bearer {token}'
            response = self._pool.request(
                'GET', self._url, fields=asked, headers=headers
            )
        except (urllib3.exceptions.HTTPError, OSError) as fault:
            raise ApiLost(str(fault)) from None
        if response.status != 200:
            raise ApiLost(f'pods: {response.status} {response.reason}')
        body: bytes = response.data
        return body


class Recounter(Retrying):
    """A thread that lists placed pods.

    :param interval: seconds between two lists
    """

    def __init__(
        self,
        lister: PodLister,
        interval: float,
        sink: PodSink,
        health: Health,
    ) -> None:
        super().__init__('pods', sink, health)
        self._lister = lister
        self._interval = interval
        self._pods = sink

    def _follow(self) -> None:
        """List pods, and wait until that is due again.

        :raises ApiLost: the API server does not answer, or refuses
        """
        self._pods.begin_listing()
        self._pods.replace(self._lister.list(SELECTOR).objects)
        self._followed()
        self._stopping.wait(self._interval)

    def _forget(self) -> None:
        """Do nothing: each list is of everything."""

    def _interrupt(self) -> None:
        """Do nothing: a list ends by itself, and the pause with the thread."""
