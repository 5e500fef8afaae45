"""Greenlets: two of gevent wait for each other's locks, and in another thread two of eventlet, one of which gives up at
some time, so that no deadlock is among them."""

import threading

import eventlet
import eventlet.semaphore
import gevent
import gevent.lock
import truth


def of_gevent():
    counted, plain = gevent.lock.RLock(), gevent.lock.Semaphore()

    def credit():
        with counted:
            gevent.sleep(0)
            plain.acquire()

    def debit():
        with plain:
            gevent.sleep(0)
            with counted:
                pass

    return [gevent.spawn(each) for each in (credit, debit)]


def of_eventlet(stand):
    left, right = eventlet.semaphore.Semaphore(), eventlet.semaphore.Semaphore()

    def patient():
        with left, right:
            raise AssertionError

    def leaves():
        with right:
            eventlet.sleep(0)
            left.acquire(timeout=truth.FOREVER)

    def work():
        truth.thread("eventlet", waits="sleep")
        for each in (leaves, patient):
            eventlet.spawn(each)
        eventlet.sleep(0.01)
        stand.set()
        eventlet.sleep(truth.FOREVER)

    threading.Thread(target=work, daemon=True).start()


stand = threading.Event()
of_eventlet(stand)
stand.wait()
tasks = of_gevent()
gevent.sleep(0.01)
truth.main_ready("poll")
gevent.sleep(truth.FOREVER)
