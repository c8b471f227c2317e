"""Run files of conformance cases: ``python -m tests.conformance FILE...``.

Ends with ``N passed, M failed``; the exit status is 1 where any failed.
"""

import argparse
import sys

from tests.support.conformance import read, run


def main() -> int:
    parser = argparse.ArgumentParser(prog='python -m tests.conformance')
    parser.add_argument('files', nargs='+', metavar='FILE')
    parser.add_argument(
        '--quiet', action='store_true', help='only the last line'
    )
    options = parser.parse_args()
    passed = failed = 0
    for path in options.files:
        for case in read(path):
            wrong = run(case)
            passed, failed = passed + (not wrong), failed + bool(wrong)
            if wrong and not options.quiet:
                print(f'{case.get("id", "?")}: {wrong}')
    print(f'{passed} passed, {failed} failed')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
