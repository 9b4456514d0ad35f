from django.urls import path

from apps.execution.api import clusters, views

urlpatterns = [
    path("jobs/<int:job_id>/logs", views.JobLogsView.as_view(), name="job-logs"),
    path("clusters/<str:name>/connection", clusters.ConnectionView.as_view(), name="cluster-connection"),
    path("clusters/<str:name>/connection/test", clusters.ConnectionTestView.as_view(), name="cluster-test"),
    path("clusters/<str:name>/sync", clusters.SyncView.as_view(), name="cluster-sync"),
]
