#!/bin/sh
# One delayed record with kcat: sh later_kcat.sh 127.0.0.1:9092 payments.delay 15m
set -eu
# librdkafka chooses partitions in its own way: either this setting, or kafka.partitioner = "crc32" in postdate.
printf kcat | kcat -P -b "$1" -t "$2" -k order-1 -H "x-delay=$3" -X acks=all -X topic.partitioner=murmur2_random
