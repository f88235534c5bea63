"""The API, the page, metrics and health over HTTP, in a process of their own.

``app`` puts everything together. ``access`` decides who may do what, before a request is read. Each other file holds
the endpoints of one resource.
"""
