from django.urls import path

from apps.staging.api import views

urlpatterns = [
    path("datasets", views.DatasetsView.as_view(), name="datasets"),
    path("datasets/<str:name>", views.DatasetView.as_view(), name="dataset"),
]
