"""A stage of the cycle, as people outside the project write one."""

import json
import urllib.error
import urllib.request

from scheduler_service.stages import HostRefused, ReservingStage

TIMEOUT_S = 5


class AddressStage(ReservingStage):
    """Reserves an address for each instance: ``address_url``."""

    def document(self, request, placement, settings):
        return {'project_id': request.project_id}

    def make(self, reservation, settings):
        if self.call('PUT', reservation, settings) == 409:
            raise HostRefused('the host has no address left')

    def undo(self, reservation, settings):
        self.call('DELETE', reservation, settings)

    def call(self, method, reservation, settings):
        url = '/'.join(
            (
                settings.plugin_options['address_url'],
                reservation.host,
                reservation.instance_uuid,
            )
        )
        body = json.dumps(reservation.document).encode()
        request = urllib.request.Request(url, body, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return answer.status
        except urllib.error.HTTPError as fault:
            # No address is left, or there is none to give back.
            if fault.code in (404, 409):
                return fault.code
            raise
