from django.urls import path

from apps.execution.api import views

urlpatterns = [path("jobs/<int:job_id>/logs", views.JobLogsView.as_view(), name="job-logs")]
