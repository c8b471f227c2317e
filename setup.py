import pathlib
import runpy

import setuptools

# They are among the files that pyproject.toml installs.
runpy.run_path('tools/manual.py')['main'](pathlib.Path('build/man'))
runpy.run_path('tools/completions.py')['main'](
    pathlib.Path('build/completions')
)
setuptools.setup(setup_requires=['pbr>=6.1.1'], pbr=True)
