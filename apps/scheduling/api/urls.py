from django.urls import path

from apps.scheduling.api import views

urlpatterns = [
    path("defragmentation", views.DefragmentationView.as_view(), name="defragmentation"),
    path("defragmentation/apply", views.DefragmentationApplyView.as_view(), name="defragmentation-apply"),
    path("jobs/preview", views.JobPreviewView.as_view(), name="job-preview"),
    path("jobs/<int:job_id>/reasons", views.JobReasonsView.as_view(), name="job-reasons"),
    path("losses", views.LossesView.as_view(), name="losses"),
    path("passes", views.PassesView.as_view(), name="passes"),
    path("passes/<int:pass_id>", views.PassView.as_view(), name="pass"),
    path("passes/<int:pass_id>/dump", views.PassDumpView.as_view(), name="pass-dump"),
    path("policy", views.PolicyView.as_view(), name="policy"),
    path("utilization", views.UtilizationView.as_view(), name="utilization"),
]
