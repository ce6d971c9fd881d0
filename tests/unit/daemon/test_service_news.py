"""Which commits are news of services, and of which."""

from __future__ import annotations

from bireme.core.services import requests as services
from bireme.daemon.service_news import News, ServiceNews, news_in
from bireme.testing.scenario import Scenario


class Watched:
    """A scenario, and what is new in it since the last look."""

    def __init__(self) -> None:
        self.world = Scenario("2x8")
        self._seen = 0

    def news(self) -> News:
        self.world.settle()
        since, self._seen = self._seen, len(self.world.journal)
        return news_in(self.world.state, self.world.journal[since:])


def test_services_and_the_jobs_of_their_replicas_are_news_and_other_jobs_are_not() -> None:
    watched = Watched()
    world = watched.world
    world.submit("plain")
    assert not watched.news().names
    world.serve("chat", "1")
    world.serve("talk", "1")
    assert watched.news().of_services() == {"chat", "talk"}
    world.suspend("chat/1")
    news = watched.news()
    assert (news.names, news.events) == ({"chat"}, ()), "its job alone has changed"
    world.finish("plain")
    assert not watched.news().names


def test_a_service_that_is_gone_is_news() -> None:
    watched = Watched()
    watched.world.serve("chat", "0-1")
    watched.news()
    watched.world.serving(services.stop, "chat")
    while "chat" in watched.world.state.services:
        watched.world.wait(60.0)
    assert "chat" in watched.news().names


def test_followers_are_told_of_news_until_they_leave() -> None:
    watched, told = Watched(), list[News]()
    subscribers = []

    class Cluster:
        state = watched.world.state

        def subscribe(self, subscriber):  # type: ignore[no-untyped-def]
            subscribers.append(subscriber)
            return subscribers.clear

    news = ServiceNews(Cluster())
    news.begin()
    leave = news.follow(told.append)
    watched.world.submit("plain")
    subscribers[0](watched.world.journal)
    assert not told
    watched.world.serve("chat", "1")
    watched.world.settle()
    subscribers[0](watched.world.journal)
    assert [each.names for each in told] == [{"chat"}]
    leave()
    subscribers[0](watched.world.journal)
    assert len(told) == 1
    news.close()
    assert not subscribers
