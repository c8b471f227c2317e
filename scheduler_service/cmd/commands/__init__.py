"""The commands of ``scheduler-manage``: functions of (arguments, options)."""
