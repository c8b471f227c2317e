"""Base classes that several weighers share; none of them is a plug-in."""
