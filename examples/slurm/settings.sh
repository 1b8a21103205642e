# Settings that all jobs share. Edit this file, then run: ./submit.sh
TASK=${TASK:-watch}
METHODS=${METHODS:-fedavg+1t,fedavg+wfa,prox+1t,fedbalancer}
OPTIONS=${OPTIONS:-}      # further options of `fedbalancer compare`, such as --rounds 200
RUNS=${RUNS:-runs/array}  # on a file system that all nodes share
