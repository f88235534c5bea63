"""Call the tasks of tasks.py: BROKER=amqp://guest:guest@127.0.0.1:5672/%2F python send.py"""

import datetime

from tasks import app, charge, remind, ship

remind.delay("at once")
remind.apply_async(("countdown",), countdown=2)
remind.apply_async(("eta",), eta=datetime.datetime.now().astimezone() + datetime.timedelta(seconds=2))
remind.apply_async(("queue",), countdown=2, queue="payments")
app.send_task("tasks.charge", ("name",), countdown=2)
charge.delay("retry", failures=1)
remind.delay("autoretry", failures=1)
ship.delay("rejected", failures=2)
print(remind.apply_async(("never",), countdown=3600).id)  # postdate cancel --key ID --route celery
