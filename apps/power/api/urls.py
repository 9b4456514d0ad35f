from django.urls import path

from apps.power.api import views

urlpatterns = [
    path("power/domains", views.PowerDomainsView.as_view(), name="power-domains"),
    path("power/domains/<str:name>", views.PowerDomainView.as_view(), name="power-domain"),
    path("power/readings", views.PowerReadingsView.as_view(), name="power-readings"),
]
