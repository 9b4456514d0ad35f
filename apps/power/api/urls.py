from django.urls import path

from apps.power.api import (
    meter_views,
    openadr_views,
    override_views,
    response_views,
    settlement_views,
    views,
)

urlpatterns = [
    path("power/domains", views.PowerDomainsView.as_view(), name="power-domains"),
    path("power/domains/<str:name>", views.PowerDomainView.as_view(), name="power-domain"),
    path("power/domains/<str:name>/envelope", views.PowerEnvelopeView.as_view(), name="power-envelope"),
    path("power/alarms", views.PowerAlarmsView.as_view(), name="power-alarms"),
    path("power/readings", views.PowerReadingsView.as_view(), name="power-readings"),
    path("power/overrides", override_views.OverridesView.as_view(), name="power-overrides"),
    path(
        "power/overrides/<int:override_id>/end",
        override_views.OverrideEndView.as_view(),
        name="power-override-end",
    ),
    path("power/meters", meter_views.MetersView.as_view(), name="power-meters"),
    path("power/meters/<str:name>", meter_views.MeterView.as_view(), name="power-meter"),
    path("demand-response/events", response_views.EventsView.as_view(), name="response-events"),
    path("demand-response/events/<int:event_id>", response_views.EventView.as_view(), name="response-event"),
    path(
        "demand-response/events/<int:event_id>/cancel",
        response_views.EventCancelView.as_view(),
        name="response-event-cancel",
    ),
    path(
        "demand-response/events/<int:event_id>/opt-out",
        response_views.EventOptOutView.as_view(),
        name="response-event-opt-out",
    ),
    path(
        "demand-response/events/<int:event_id>/plans",
        response_views.EventPlansView.as_view(),
        name="response-event-plans",
    ),
    path(
        "demand-response/events/<int:event_id>/settlement",
        settlement_views.SettlementView.as_view(),
        name="response-event-settlement",
    ),
    path(
        "demand-response/events/<int:event_id>/settle",
        settlement_views.SettleView.as_view(),
        name="response-event-settle",
    ),
    path("demand-response/programmes", response_views.ProgrammesView.as_view(), name="response-programmes"),
    path(
        "demand-response/programmes/<str:name>",
        response_views.ProgrammeView.as_view(),
        name="response-programme",
    ),
    path("openadr/connections", openadr_views.ConnectionsView.as_view(), name="openadr-connections"),
    path("openadr/connections/<str:name>", openadr_views.ConnectionView.as_view(), name="openadr-connection"),
    path(
        "openadr/connections/<str:name>/events",
        openadr_views.ConnectionEventsView.as_view(),
        name="openadr-connection-events",
    ),
    path(
        "openadr/connections/<str:name>/events/<str:external_id>/accept",
        openadr_views.AcceptView.as_view(),
        name="openadr-event-accept",
    ),
    path("openadr/try", openadr_views.TryView.as_view(), name="openadr-try"),
]
