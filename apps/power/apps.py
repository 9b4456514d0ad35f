from django.apps import AppConfig


class PowerConfig(AppConfig):
    name = "apps.power"
    label = "power"
