"""What several host filters share: base classes, mixins and calculations.

The modules here hold no plug-in. A filter of its own folder imports from
here, never from another filter.
"""

# The base class of host filters lies in the package that also lists the
# filters. Importing that package first lets any module here be imported
# on its own.
import scheduler_service.filters.hosts  # noqa: F401
