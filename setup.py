import pathlib
import runpy

import setuptools

# The man pages, which are among the files that pyproject.toml installs.
runpy.run_path('tools/manual.py')['main'](pathlib.Path('build/man'))
setuptools.setup(setup_requires=['pbr>=6.1.1'], pbr=True)
