from django.urls import path

from apps.teams.api import views

urlpatterns = [
    path("me", views.MeView.as_view(), name="me"),
    path("users", views.UsersView.as_view(), name="users"),
    path("users/<str:username>", views.UserView.as_view(), name="user"),
    path("tokens", views.TokensView.as_view(), name="tokens"),
    path("tokens/<int:token_id>", views.TokenView.as_view(), name="token"),
    path("teams", views.TeamsView.as_view(), name="teams"),
    path("teams/<str:name>", views.TeamView.as_view(), name="team"),
    path("teams/<str:name>/quota", views.QuotaView.as_view(), name="team-quota"),
    path("teams/<str:name>/member-limits", views.MemberLimitsView.as_view(), name="team-member-limits"),
    path("teams/<str:name>/loans", views.TeamLoansView.as_view(), name="team-loans"),
    path("teams/<str:name>/quota-requests", views.TeamRequestsView.as_view(), name="team-quota-requests"),
    path(
        "quota-requests/<int:request_id>/answer",
        views.QuotaRequestAnswerView.as_view(),
        name="quota-request-answer",
    ),
    path("loans", views.LoansView.as_view(), name="loans"),
    path("loans/<int:loan_id>", views.LoanView.as_view(), name="loan"),
    path("loans/<int:loan_id>/answer", views.LoanAnswerView.as_view(), name="loan-answer"),
    path("loans/<int:loan_id>/end", views.LoanEndView.as_view(), name="loan-end"),
    path("teams/<str:name>/members", views.MembersView.as_view(), name="team-members"),
    path("teams/<str:name>/members/<str:username>", views.MemberView.as_view(), name="team-member"),
]
