from django.urls import path

from apps.scheduling.api import facility_views, import_views, power_views, response_views, views

urlpatterns = [
    path("defragmentation", views.DefragmentationView.as_view(), name="defragmentation"),
    path("defragmentation/apply", views.DefragmentationApplyView.as_view(), name="defragmentation-apply"),
    path("demand-response/preview", response_views.DryRunView.as_view(), name="response-dry-run"),
    path("demand-response/commit", response_views.DraftCommitView.as_view(), name="response-draft-commit"),
    path(
        "demand-response/events/<int:event_id>/preview",
        response_views.EventPreviewView.as_view(),
        name="response-event-preview",
    ),
    path(
        "demand-response/events/<int:event_id>/commit",
        response_views.EventCommitView.as_view(),
        name="response-event-commit",
    ),
    path("facility", facility_views.FacilityView.as_view(), name="facility"),
    path("facility/check", facility_views.FacilityCheckView.as_view(), name="facility-check"),
    path("facility/apply", facility_views.FacilityApplyView.as_view(), name="facility-apply"),
    path("power/control", response_views.ControllerView.as_view(), name="power-control"),
    path("power/control/stop", response_views.ControllerStopView.as_view(), name="power-control-stop"),
    path("power/control/start", response_views.ControllerStartView.as_view(), name="power-control-start"),
    path("jobs/import", import_views.JobImportView.as_view(), name="job-import"),
    path("jobs/preview", views.JobPreviewView.as_view(), name="job-preview"),
    path("jobs/<int:job_id>/reasons", views.JobReasonsView.as_view(), name="job-reasons"),
    path("jobs/<int:job_id>/sooner", views.JobSoonerView.as_view(), name="job-sooner"),
    path("jobs/<int:job_id>/power", power_views.JobPowerView.as_view(), name="job-power"),
    path("losses", views.LossesView.as_view(), name="losses"),
    path("passes", views.PassesView.as_view(), name="passes"),
    path("passes/<int:pass_id>", views.PassView.as_view(), name="pass"),
    path("passes/<int:pass_id>/dump", views.PassDumpView.as_view(), name="pass-dump"),
    path("policy", views.PolicyView.as_view(), name="policy"),
    path("power/loads", power_views.LoadsView.as_view(), name="power-loads"),
    path("utilization", views.UtilizationView.as_view(), name="utilization"),
]
