import configparser
import os
import pathlib
import runpy

import setuptools

# They are among the files that pyproject.toml installs.
runpy.run_path('tools/manual.py')['main'](pathlib.Path('build/man'))
runpy.run_path('tools/completions.py')['main'](
    pathlib.Path('build/completions')
)
# An archive of the sources has neither tags nor metadata: the version is that
# of setup.cfg then.
if not any(map(os.path.exists, ('.git', 'PKG-INFO'))):
    settings = configparser.ConfigParser()
    settings.read('setup.cfg')
    os.environ.setdefault('PBR_VERSION', settings['metadata']['version'])
setuptools.setup(setup_requires=['pbr>=6.1.1'], pbr=True)
