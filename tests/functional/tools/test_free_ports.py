"""A port that a test chooses for a server is the server's."""

import socket

import pytest

from tests.support import servers


def listen(port: int) -> socket.socket:
    return socket.create_server(('127.0.0.1', port))


def test_a_port_is_refused_to_all_but_who_names_it():
    port = servers.free_port()
    with socket.socket() as another, pytest.raises(OSError, match='in use'):
        another.bind(('127.0.0.1', port))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(('127.0.0.1', port))


def test_a_server_may_listen_again_after_it_has_ended():
    port = servers.free_port()
    for _ in range(2):
        with (
            listen(port) as server,
            socket.create_connection(('127.0.0.1', port)) as client,
            server.accept()[0] as accepted,
        ):
            assert accepted.getpeername() == client.getsockname()
            with pytest.raises(OSError, match='in use'):
                listen(port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(('127.0.0.1', port))


def test_a_second_port_lies_as_far_above_as_was_asked():
    ports = {servers.free_port(beside=10_000) for _ in range(20)}
    assert len(ports) == 20
    for port in ports:
        with listen(port), listen(port + 10_000):
            pass


def test_no_more_sockets_are_kept_than_a_process_may_open():
    for _ in range(3 * servers._MOST_KEPT):
        last = servers.free_port()
    assert len(servers._kept_ports) == servers._MOST_KEPT
    with socket.socket() as another, pytest.raises(OSError, match='in use'):
        another.bind(('127.0.0.1', last))
