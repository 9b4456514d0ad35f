from django.urls import path

from apps.staging.api import views

urlpatterns = [
    path("datasets", views.DatasetsView.as_view(), name="datasets"),
    path("datasets/<str:name>", views.DatasetView.as_view(), name="dataset"),
    path("stores", views.StoresView.as_view(), name="stores"),
    path("stores/<str:name>", views.StoreView.as_view(), name="store"),
    path("transfers", views.TransfersView.as_view(), name="transfers"),
    path("transfers/<int:transfer_id>", views.TransferView.as_view(), name="transfer"),
    path("transfers/<int:transfer_id>/cancel", views.TransferCancelView.as_view(), name="transfer-cancel"),
]
