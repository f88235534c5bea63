"""The instruments: demo, bench and compare. Each runs a bridge of its own under unique names.

- ``ports`` and ``load``: what a broker's lab in ``adapters`` shares with them.
- ``trial`` runs the bridge, ``load_runner`` the loads.
- ``figures`` holds the statistics, ``machine`` what the machine was and what processes used.
- ``command``: what the commands bench and compare share.
"""
