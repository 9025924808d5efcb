"""
The Grafana dashboards, as code: `python -m grafana` writes `grafana/dashboards/*.json` from `grafana/pages`.

Grafana is pointed at the JSON (`grafana/provisioning`); nothing here runs when dashboards are looked at.
"""
