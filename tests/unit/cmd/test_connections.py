"""Addresses of servers are printed without passwords."""

from oslo_config import cfg
from oslo_messaging.transport import TransportURL

from scheduler_service import conf as options
from scheduler_service.cmd import adapters, connections


def test_addresses_have_no_passwords():
    conf = adapters.new_config()
    options.parse(conf, [], default_config_files=[], default_config_dirs=[])
    url = 'mysql+pymysql://u:secret@h:3306/d?password=secret&charset=utf8'
    conf.set_override('connection', url, 'database')
    assert connections.database_address(conf) == 'mysql+pymysql://u@h:3306/d'
    bus = TransportURL.parse(
        cfg.ConfigOpts(), 'rabbit://u:secret@a:1,v:secret@b:2/vhost'
    )
    assert connections.broker_address(bus) == 'rabbit://u@a:1,v@b:2/vhost'
