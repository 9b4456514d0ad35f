from django.urls import path

from apps.reservations.api import views

urlpatterns = [
    path("reservations", views.ReservationsView.as_view(), name="reservations"),
    path("reservations/check", views.ReservationCheckView.as_view(), name="reservation-check"),
    path("reservations/<str:name>", views.ReservationView.as_view(), name="reservation"),
    path("reservations/<str:name>/cancel", views.ReservationCancelView.as_view(), name="reservation-cancel"),
]
