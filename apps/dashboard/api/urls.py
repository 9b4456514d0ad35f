from django.urls import path

from apps.dashboard.api import views

urlpatterns = [
    path("saved-views", views.SavedViewsView.as_view(), name="saved-views"),
    path("saved-views/<int:view_id>", views.SavedViewView.as_view(), name="saved-view"),
]
