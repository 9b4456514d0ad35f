from django.urls import path

from apps.inventory.api import views

urlpatterns = [
    path("accelerator-types", views.AcceleratorTypesView.as_view(), name="accelerator-types"),
    path("accelerator-types/<str:name>", views.AcceleratorTypeView.as_view(), name="accelerator-type"),
    path("domains", views.DomainsView.as_view(), name="domains"),
    path("domains/<str:name>", views.DomainView.as_view(), name="domain"),
    path("clusters", views.ClustersView.as_view(), name="clusters"),
    path("clusters/<str:name>", views.ClusterView.as_view(), name="cluster"),
    path("nodes", views.NodesView.as_view(), name="nodes"),
    path("nodes/<str:name>", views.NodeView.as_view(), name="node"),
    path("nodes/<str:name>/drain", views.NodeDrainView.as_view(), name="node-drain"),
    path("nodes/<str:name>/resume", views.NodeResumeView.as_view(), name="node-resume"),
    path("nodes/<str:name>/health", views.NodeHealthView.as_view(), name="node-health"),
]
