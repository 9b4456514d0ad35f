from django.apps import AppConfig


class StagingConfig(AppConfig):
    name = "apps.staging"
    label = "staging"
