from django.urls import path

from apps.events.api import views

urlpatterns = [path("events", views.EventsView.as_view(), name="events")]
