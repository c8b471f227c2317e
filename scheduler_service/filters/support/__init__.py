"""What several host filters share: base classes, mixins and calculations.

No module in this package is a plug-in. Each is named by what it holds.
"""

# The base class of host filters lies in the package that also lists the
# filters. Importing that package first lets any module here be imported
# on its own.
import scheduler_service.filters.hosts  # noqa: F401
