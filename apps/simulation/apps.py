from django.apps import AppConfig


class SimulationConfig(AppConfig):
    name = "apps.simulation"
    label = "simulation"
