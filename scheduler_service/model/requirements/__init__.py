"""What a request means: the one place that works it out.

Extra specs of the flavor, properties of the image and parts of the request
become amounts, traits, groups, NUMA cells and devices here, for all callers.
Filters, weighers, claims and explanations read these from
:class:`scheduler_service.model.Request`, which keeps them. A value that means
nothing is refused by its name. Stateless; any thread may call it.
"""
