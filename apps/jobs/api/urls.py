from django.urls import path

from apps.jobs.api import views

urlpatterns = [
    path("jobs", views.JobsView.as_view(), name="jobs"),
    path("jobs/bulk", views.JobsBulkView.as_view(), name="jobs-bulk"),
    path("jobs/<int:job_id>", views.JobView.as_view(), name="job"),
    path("jobs/<int:job_id>/stop", views.JobStopView.as_view(), name="job-stop"),
    path("jobs/<int:job_id>/hold", views.JobHoldView.as_view(), name="job-hold"),
    path("jobs/<int:job_id>/release", views.JobReleaseView.as_view(), name="job-release"),
    path("jobs/<int:job_id>/placement", views.JobPlacementView.as_view(), name="job-placement"),
    path("jobs/<int:job_id>/progress", views.JobProgressView.as_view(), name="job-progress"),
    path("jobs/<int:job_id>/attempts", views.JobAttemptsView.as_view(), name="job-attempts"),
    path("jobs/<int:job_id>/events", views.JobEventsView.as_view(), name="job-events"),
]
