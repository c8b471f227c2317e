"""The form of log lines and the levels of loggers, by the options.

A reload changes the levels.
"""

from __future__ import annotations

import configparser
import copy
import logging
from logging.handlers import SysLogHandler
from typing import Any

from oslo_log import formatters, log

from scheduler_service import errors
from scheduler_service.texts import printable

_PRODUCT = 'scheduler_service'


class Formatter(formatters.ContextFormatter):  # type: ignore[misc]
    """Formats log lines without repeated errors and control characters.

    The library appends the error that is being handled, which most of our
    messages include already. Messages quote values of callers, so control
    characters are escaped: no caller can forge a line of the log.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a line, or the lines of a traceback.

        An error that the message includes is not appended.
        """
        if record.exc_info or record.stack_info:
            # The record stays as it is for other handlers.
            record = copy.copy(record)
            record.msg, record.args = printable(record.getMessage()), None
            return str(super().format(record))
        line = str(super().format(record))
        appended = getattr(record, 'error_summary', '')
        _, _, error = appended.partition(': ')
        if error and error in record.getMessage():
            line = line.removesuffix(f': {appended}')
        return printable(line)


def set_up(conf: Any) -> None:
    log.setup(conf, _PRODUCT)
    if conf.log_config_append:
        return
    for handler in logging.getLogger().handlers:
        if type(handler.formatter) is formatters.ContextFormatter:
            handler.setFormatter(
                Formatter(
                    project=_PRODUCT, datefmt=conf.log_date_format, config=conf
                )
            )


class _CommandFormatter(logging.Formatter):
    """Escapes messages, so that they cannot move a terminal's cursor."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the message of a record, without its traceback."""
        return printable(super().formatMessage(record))


def set_up_command(debug: bool = False) -> None:
    """Let a command print our own warnings, not those of libraries.

    Libraries log errors, some with tracebacks, that the command prints in one
    line.

    :param debug: print warnings of libraries as well
    """
    if logging.getLogger().handlers:
        # A program that runs commands in its own process has set it up.
        return
    level = logging.WARNING if debug else logging.CRITICAL
    handler = logging.StreamHandler()
    handler.setFormatter(_CommandFormatter('%(message)s'))
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger('scheduler_service').setLevel(logging.WARNING)


def check(conf: Any) -> None:
    """Check the options that :func:`change` applies.

    :raises ConfigurationError: a level is unknown, or the file of
        ``log_config_append`` cannot be read
    """
    for name, level in _levels(conf).items():
        if level not in logging.getLevelNamesMapping() and not level.isdigit():
            raise errors.ConfigurationError(
                f'[DEFAULT] default_log_levels: {name}={level}: '
                'there is no such level'
            )
    facility = conf.syslog_log_facility.lower().removeprefix('log_')
    if conf.use_syslog and facility not in SysLogHandler.facility_names:
        raise errors.ConfigurationError(
            f'[DEFAULT] syslog_log_facility: there is no {facility}'
        )
    path = conf.log_config_append
    if not path:
        return
    parser = configparser.ConfigParser(interpolation=None)
    try:
        with open(path) as file:
            parser.read_file(file)
        for section in ('loggers', 'handlers', 'formatters'):
            parser.get(section, 'keys')
    except (OSError, ValueError, configparser.Error) as fault:
        raise errors.ConfigurationError(
            f'[DEFAULT] log_config_append: {fault}'
        ) from None


def change(conf: Any, before: Any) -> None:
    """Set the levels of loggers by *conf*; handlers stay.

    :param before: the options of the present levels
    """
    if conf.log_config_append:
        set_up(conf)
        return
    root = logging.DEBUG if conf.debug else logging.INFO
    logging.getLogger().setLevel(root)
    levels = _levels(conf)
    for name in _levels(before).keys() - levels.keys():
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name, level in levels.items():
        number = int(level) if level.isdigit() else level
        logging.getLogger(name).setLevel(number)


def _levels(conf: Any) -> dict[str, str]:
    pairs = (text.partition('=') for text in conf.default_log_levels)
    return {name: level for name, _, level in pairs}
