"""What several host filters share: base classes, mixins and calculations.

No module in this package is a plug-in. Each is named by what it holds.
"""
